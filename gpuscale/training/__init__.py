"""How long a training run takes in the end: failures, checkpoints, slow parts, money and energy."""
