"""How a program is written down: the functions of torch as operations, and what ranks say to each other."""
