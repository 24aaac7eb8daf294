"""From tables to the Report, the second waist: queries, measures, findings, verdict."""

__all__: list[str] = []
