"""The device-side server: OpenAI's API and a page in front of one loaded pair."""
