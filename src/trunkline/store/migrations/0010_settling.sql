-- What calls truly cost and how they went, for those who settle them.
ALTER TABLE attempts
    -- In millionths of the currency, once the call has ended; until then `reserved_micros` stands in its place.
    ADD COLUMN cost_micros  bigint,
    -- A machine answered, or a person did; NULL: nobody said.
    ADD COLUMN is_machine   boolean,
    -- False: somebody answered, and there was no agent for the call.
    ADD COLUMN agent_joined boolean;
