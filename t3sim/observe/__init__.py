"""What happened when: timelines of a run and the files that show them."""
