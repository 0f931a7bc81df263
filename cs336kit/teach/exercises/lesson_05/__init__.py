"""Exercises of lesson 05: FLOPs and MFU."""

from cs336kit.teach.exercises.lesson_05.counting import MFU, PRODUCT
from cs336kit.teach.exercises.lesson_05.fusing import CHAIN
from cs336kit.teach.exercises.lesson_05.intensity import BATCH, INTENSITY
from cs336kit.teach.exercises.lesson_05.timing import REPORT

EXERCISES = (PRODUCT, MFU, INTENSITY, BATCH, REPORT, CHAIN)
