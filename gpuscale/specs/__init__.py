"""Frozen descriptions, in SI units, of what a prediction starts from: GPU, cluster, model and training job."""
