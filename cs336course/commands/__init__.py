"""The commands of those who keep, publish and teach the course."""
