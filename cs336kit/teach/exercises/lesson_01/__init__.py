"""Exercises of lesson 01, floating point."""

from cs336kit.teach.exercises.lesson_01 import bits, design, largest, missing, rounding

EXERCISES = (bits.EXERCISE, missing.EXERCISE, rounding.EXERCISE, largest.EXERCISE, design.EXERCISE)
