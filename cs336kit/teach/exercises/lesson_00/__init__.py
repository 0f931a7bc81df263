"""Exercises of lesson 00: napkin math."""

from cs336kit.teach.exercises.lesson_00 import affordable, days, deadline, memory, what_fits

EXERCISES = (days.EXERCISE, memory.EXERCISE, what_fits.EXERCISE, deadline.EXERCISE, affordable.EXERCISE)
