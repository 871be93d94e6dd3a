"""Translation memories made, looked up and listed: tables, TMX, files with translations."""
