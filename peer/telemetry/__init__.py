"""The telemetry of a daemon: events, status, journal, metrics, screen and reports."""
