"""Sessions and their conversations: values, files, and how long ones are compacted."""
