"""Let everybody run a lesson from top to bottom, including the cells that need a GPU."""


def on_gpu() -> bool:
    """True where there is a CUDA device; elsewhere it prints that the cell is skipped and returns False.

    Every cell tagged ``gpu`` begins with ``if teach.on_gpu():``, so that "Run All" works on a CPU.
    """
    import torch

    if torch.cuda.is_available():
        return True
    print("This cell needs a CUDA device, and there is none here: skipped.")
    return False
