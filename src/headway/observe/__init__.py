"""What happened, as numbers: metrics now; timelines and cost later."""
