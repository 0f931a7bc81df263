"""The weights that exercises of lesson 13 count in the blocks of a Transformer."""


def block_weights(layers, d_model, d_ff):
    """Attention's four matrices with full heads, and the two of a GELU MLP, in all layers."""
    return layers * (4 * d_model**2 + 2 * d_model * d_ff)
