"""What the whole kit shares and no reader needs: argument checks, text and HTML tables, Breakdown."""
