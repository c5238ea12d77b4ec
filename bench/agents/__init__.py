"""Does everybody who answers get an agent, whatever fails? Faults one by one, judged by the carrier and the pods."""
