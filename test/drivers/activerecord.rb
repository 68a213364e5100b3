# ActiveRecord.  Behind a pooler prepared statements are off.
require 'active_record'

ActiveRecord.deprecator.silenced = true if ActiveRecord.respond_to?(:deprecator)
ActiveSupport::Deprecation.silenced = true if ActiveSupport::Deprecation.respond_to?(:silenced=)
ActiveRecord::Base.establish_connection(adapter: 'postgresql', database: ENV['PGDATABASE'],
                                        prepared_statements: !ENV['POOLED'],
                                        advisory_locks: false)
class Task < ActiveRecord::Base
  self.table_name = 'task'
end
db = Task.connection

Task.transaction do
  Task.create!(request: "SELECT 'lost'")
  raise ActiveRecord::Rollback
end
puts "rolled back #{Task.where("request ~ 'lost'").count}"

task = Task.create!(request: "SELECT (pg_task_input() ->> 'a')::int * 7", input: { a: 6 })
state = 'PLAN'
while %w[PLAN WORK].include?(state)
  state = db.select_value("SELECT state FROM pg_task_wait(ARRAY[#{task.id}::bigint])")
end
puts "done #{task.reload.response}"

puts "columns #{Task.all.to_a.first.attributes.size}"

debounce = lambda do
  Task.upsert({ queue: 'default', key: 'activerecord', request: 'SELECT 1', dt: 1.hour.from_now },
              unique_by: :task_key_idx, returning: :id).first['id']
end
puts "debounced #{debounce.call == debounce.call ? 'True' : 'False'}"

begin
  db.execute("UPDATE task SET state = 'PLAN', attempt = 0 WHERE id = #{task.id}")
rescue ActiveRecord::SerializationFailure => e
  puts "stale #{e.cause.result.error_field(PG::PG_DIAG_SQLSTATE)}"
end

Task.insert_all((0...100).map { |n| { queue: 'bulk', request: "SELECT #{n}" } })
puts "bulk #{Task.where(queue: 'bulk').count}"

Task.create!(queue: 'mail', request: 'send', input: { to: 'me' })
id = nil
Task.transaction do
  taken = db.select_one("SELECT handle, id, request, input ->> 'to' AS who
                           FROM pg_task_take(ARRAY['mail'], wait => 10000)")
  id = taken['id']
  db.select_value("SELECT pg_task_finish(#{db.quote(taken['handle'])}, '{\"sent\": true}')")
  puts "taken #{taken['request']} #{taken['who']}"
end
puts "finished #{Task.find(id).state}"
