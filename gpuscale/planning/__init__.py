"""From a question to its answer: the functions behind `gpuscale plan`, `estimate`, `placement` and `bench`."""
