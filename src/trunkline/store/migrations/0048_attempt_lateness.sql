-- When everything that a call needs was there: its lead due, its window open, nothing stopped, a channel and an agent free,
-- its turn in every pace. How late it is counts from then; before, it waited. NULL: of attempts before this, and of inbound.
ALTER TABLE attempts ADD COLUMN ready_at timestamptz;
