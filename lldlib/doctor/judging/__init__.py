"""What verdicts rest on: levels against noise, signs of a dead policy, warnings before a fall."""
