-- The consumer of PgQ: executes the text of each event of a batch, and then commits the batch.
CREATE PROCEDURE bench.pgq_consume(events int) LANGUAGE plpgsql AS $$
DECLARE
    began timestamptz := clock_timestamp();
    batch bigint;
    event text;
    answer text;
    consumed int := 0;
BEGIN
    LOOP
        batch := pgq.next_batch('bench', 'bench');
        EXIT WHEN batch IS NULL;
        FOR event IN SELECT ev_data FROM pgq.get_batch_events(batch) LOOP
            EXECUTE event INTO answer;
            consumed := consumed + 1;
        END LOOP;
        PERFORM pgq.finish_batch(batch);
        COMMIT;
    END LOOP;
    IF consumed <> events THEN
        RAISE EXCEPTION '% of % events were consumed', consumed, events;
    END IF;
    INSERT INTO bench.span VALUES (began, clock_timestamp());
END $$;
