"""What to expect of two machines before anything is moved: `outrider plan`."""
