"""What only the language-model study needs (METHOD section 5): corpora of text, and bigram recall."""
