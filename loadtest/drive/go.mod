module coppice.dev/loadtest/drive

go 1.26.0
