"""What holds for every request: who asks, how errors, pages, repeats, versions and streams look."""
