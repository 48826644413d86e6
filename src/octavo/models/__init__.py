"""Models: one file per architecture, over the ops contract."""
