"""One trainer, its checkpoints, and the evaluation of what it trained."""
