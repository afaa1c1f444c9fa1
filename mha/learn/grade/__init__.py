"""Grade students' attention by the levels of a course: find what differs first, and why."""
