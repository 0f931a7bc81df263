"""The stored lessons as data: what is in their cells, whether their outputs are still right, and how to store new ones."""
