"""Exercises of lesson 04, einops and jaxtyping."""

from cs336kit.teach.exercises.lesson_04 import chain, grouped_queries, merge_heads, split_heads, windows

EXERCISES = (windows.EXERCISE, split_heads.EXERCISE, merge_heads.EXERCISE, grouped_queries.EXERCISE, chain.EXERCISE)
