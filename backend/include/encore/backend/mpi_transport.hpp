// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/transport.hpp>

#include <memory>
#include <string>

namespace encore::backend {

/// This process' end of a group of all processes of an MPI job, for host memory. Starts MPI where nobody has, and then ends
/// it with its last end. Every process calls it at the same time, with the same name. Sums of bfloat16 are rounded at each
/// addition, in MPI's order. A small broadcast of bytes also brings the id of an NCCL group to all ranks:
///
///   NcclId id = mpi->rank() == 0 ? make_nccl_id() : NcclId{};
///   mpi->broadcast(id.data(), id.size(), DataType::uint8, 0, nullptr);
///
/// Operations throw CommunicationError with MPI's own words; a process that dies ends the job, as mpiexec does. So does
/// one whose end an exception destroys: then MPI is not ended, since that would wait for the others. Where the program has
/// started MPI for calls of one thread alone, those of others are refused by CommunicationError. Throws DeviceError
/// in a build without MPI (ENCORE_ENABLE_MPI).
std::shared_ptr<Transport> mpi_transport(std::string name);

/// The same for the processes of a communicator of the caller's, by its Fortran handle (MPI_Comm_c2f), which every MPI
/// has as a plain number. It is duplicated.
std::shared_ptr<Transport> mpi_transport(std::string name, int fortran_communicator);

}  // namespace encore::backend
