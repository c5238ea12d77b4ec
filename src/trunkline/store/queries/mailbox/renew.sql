-- Lengthen the leases of what is still being handled; the answer names the fences that are no longer ours. A row that
-- somebody has locked for a moment is left for the next beat: there are three of them in a lease.
WITH held AS (
    SELECT h.key, h.fence, m.fence AS true_fence, m.processing_status
    FROM unnest($2::text[], $3::bigint[]) AS h (key, fence)
    LEFT JOIN mailboxes AS m ON m.kind = $1 AND m.key = h.key
), ours AS (
    SELECT m.kind, m.key, m.fence
    FROM held JOIN mailboxes AS m ON m.kind = $1 AND m.key = held.key
    WHERE m.fence = held.fence AND m.processing_status = 'processing'
    FOR NO KEY UPDATE OF m SKIP LOCKED
), renewed AS (
    UPDATE mailboxes AS m
    SET claimable_at = clock_timestamp() + make_interval(secs => $4)
    FROM ours
    WHERE m.kind = ours.kind AND m.key = ours.key AND m.fence = ours.fence
)
SELECT fence FROM held WHERE true_fence IS DISTINCT FROM fence OR processing_status <> 'processing'
