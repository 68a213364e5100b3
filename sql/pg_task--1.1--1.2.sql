-- complain if the script is sourced in psql
\echo Use "ALTER EXTENSION pg_task UPDATE" to load this file. \quit

