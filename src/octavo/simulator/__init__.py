"""A fleet before it is bought: the engine's own core on a virtual clock, with a cost model in place of the model."""
