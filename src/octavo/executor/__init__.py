"""From a scheduled step to arrays and back."""
