"""The stored lessons as data: what their cells are, whether their outputs are still true, how to store them anew."""
