"""Users' own jobs: records, dumps, traces and logs read as Timelines; recording, following and
testing a job."""
