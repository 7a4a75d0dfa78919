"""What a test of telemetry needs and a program does not: machines made of files."""
