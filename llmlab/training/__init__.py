"""Training a draft head on text that the target model wrote itself."""
