"""What a daemon says of itself: events, its status, journal, metrics, screen and reports."""
