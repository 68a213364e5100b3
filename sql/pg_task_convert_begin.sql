-- What the files that convert tables of other extensions have in common; they include it.  In a
-- transaction: fixes its settings, and says which code of others the caller may run.
--
-- To write a table may run code of its owner, and of whoever has put a trigger on it.  So a superuser
-- may convert into tables of superusers only.

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL standard_conforming_strings = on;
SET LOCAL client_min_messages = warning;
SET LOCAL intervalstyle = postgres;

-- May the caller run the code of this role?  The file that includes this one sets the hint.
CREATE FUNCTION pg_temp.convert_trust(owner name, what text) RETURNS void STRICT LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT pg_has_role(owner, 'USAGE') OR EXISTS (
           SELECT FROM pg_roles AS c, pg_roles AS o
            WHERE c.rolname = current_user AND c.rolsuper AND o.rolname = owner AND NOT o.rolsuper) THEN
        RAISE EXCEPTION '% belongs to role "%": run this as that role', what, owner
            USING HINT = current_setting('pg_task_convert.hint');
    END IF;
END $$;

-- Whoever owns a schema, or the database whose schema public is, may put another table there in the
-- place of one.
CREATE FUNCTION pg_temp.convert_trust_schema(relation regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_temp.convert_trust(
                CASE WHEN n.nspowner = 'pg_database_owner'::regrole THEN pg_get_userbyid(d.datdba)
                     ELSE pg_get_userbyid(n.nspowner) END, format('schema %I', n.nspname))
       FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace, pg_database AS d
      WHERE c.oid = relation AND d.datname = current_database()
        AND (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = current_user);
END $$;

-- May the caller write the task table?  Others may have triggers on it, or own partitions of it.
CREATE FUNCTION pg_temp.convert_trust_task_table(task regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_temp.convert_trust(pg_get_userbyid(c.relowner), format('table %s', task))
       FROM pg_class AS c WHERE c.oid = task;
    PERFORM pg_temp.convert_trust_schema(task);
    PERFORM pg_temp.convert_trust(pg_get_userbyid(c.relowner), format('table %s', c.oid::regclass)),
            pg_temp.convert_trust(pg_get_userbyid(p.proowner),
                format('function %s of trigger %s', p.oid::regproc, quote_ident(t.tgname)))
       FROM (SELECT task AS relid UNION SELECT relid FROM pg_partition_tree(task)) AS r
       JOIN pg_class AS c ON c.oid = r.relid
       LEFT JOIN pg_trigger AS t ON t.tgrelid = r.relid AND NOT t.tgisinternal AND NOT EXISTS (
            SELECT FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
             WHERE d.classid = 'pg_proc'::regclass AND d.objid = t.tgfoid AND d.deptype = 'e'
               AND d.refclassid = 'pg_extension'::regclass AND e.extname = 'pg_task')
       LEFT JOIN pg_proc AS p ON p.oid = t.tgfoid
      WHERE (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = current_user);
END $$;
