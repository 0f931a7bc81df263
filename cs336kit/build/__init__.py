"""What is accounted for: models, optimizers, data, training, checkpoints, in plain PyTorch to be read."""
