#!lua
-- Adds a wakeup for each mailbox. The stream is bounded: no worker reads the wakeups of a kind without handlers.
--
-- KEYS[1] stream
-- ARGV[1] length_max  ARGV[2..] keys of mailboxes
-- -> the number of wakeups
for i = 2, #ARGV do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'key', ARGV[i])
end
return #ARGV - 1
