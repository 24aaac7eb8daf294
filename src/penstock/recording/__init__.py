"""The recorder inside the job, the observers beside the job, and the ways to load the recorder."""

__all__: list[str] = []
