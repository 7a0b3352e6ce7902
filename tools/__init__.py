"""Small scripts of the course: record the chapters, check them, build the site."""
