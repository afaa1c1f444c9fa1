"""Students' attention, graded: levels as a course has them, what differs first, and why."""
