"""How a program is written down: the functions of torch as operations, and communication between ranks."""
