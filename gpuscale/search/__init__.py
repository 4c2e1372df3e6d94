"""The search: which layouts fit, and which of them are best."""
