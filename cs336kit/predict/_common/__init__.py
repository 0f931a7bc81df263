"""What all rooms share and no reader needs: argument checks, text and HTML tables, Breakdown."""
