"""Which of several variants is better? Pure: the same units give the same comparison anywhere."""
