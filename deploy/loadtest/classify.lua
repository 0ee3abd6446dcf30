-- wrk posts the files of a folder, which has images alone, in turn and checks the answers; what each
-- file is, the server sees by its first bytes:
--     wrk -t 1 -c 8 -d 10s --latency -s deploy/loadtest/classify.lua http://127.0.0.1:8000 -- models/digits/samples

local threads = {}

function setup(thread)
   table.insert(threads, thread)
   thread:set("number", #threads)
end

function init(args)
   local folder = args[1] or "models/digits/samples"
   requests, turn, bad, statuses = {}, number, 0, ""
   local prefix = (wrk.path or "/"):gsub("/$", "")
   local listing = assert(io.popen('ls "' .. folder .. '"'))
   for name in listing:lines() do
      local file = assert(io.open(folder .. "/" .. name, "rb"))
      local headers = { ["Content-Type"] = "application/octet-stream" }
      local body = file:read("*a")
      table.insert(requests, wrk.format("POST", prefix .. "/v1/classify", headers, body))
      file:close()
   end
   listing:close()
   assert(#requests > 0, "there are no files in " .. folder)
end

function request()
   turn = turn % #requests + 1
   return requests[turn]
end

function response(status, headers, body)
   if status ~= 200 or not body:find('"predictions"', 1, true) then
      bad = bad + 1
      if not statuses:find(status, 1, true) then
         statuses = statuses .. " " .. status
      end
   end
end

function done(summary, latency, requests)
   local bad, statuses = 0, ""
   for _, thread in ipairs(threads) do
      bad = bad + thread:get("bad")
      for status in thread:get("statuses"):gmatch("%d+") do
         if not statuses:find(status, 1, true) then
            statuses = statuses .. " " .. status
         end
      end
   end
   io.write("not classified: " .. bad .. (bad > 0 and " (status" .. statuses .. ")" or "") .. "\n")
end
